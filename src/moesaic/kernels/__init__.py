"""Kernels written in Python: one operation a file, its formula on the first line, the launcher above the kernel.

Only backends and dispatchers import them, where they are used: the compilers are packages that a user may not have.
"""
