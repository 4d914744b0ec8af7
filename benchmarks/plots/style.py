"""The colours of a drawing. One file serves light and dark pages: it asks the reader's scheme."""

from __future__ import annotations

from collections.abc import Mapping

Colours = Mapping[str, tuple[str, str]]
"""Of each line by name, on light and on dark pages; in the order of the legend."""
STYLE = """
 text { font: 12px sans-serif; fill: #1f2328 } .small { font-size: 11px; fill: #59636e }
 .grid { stroke: #d1d9e0; stroke-width: 1 } .one { stroke: #59636e; stroke-dasharray: 4 4; fill: none }
 polyline { fill: none; stroke-width: 2 }"""
DARK = " text { fill: #f0f6fc } .small { fill: #9198a1 } .grid { stroke: #3d444d } .one { stroke: #9198a1 }"


def style(colours: Colours) -> str:
    """The rules of both schemes."""
    both = [
        [
            f".{name} {{ stroke: {pair[scheme]} }} .dot-{name} {{ fill: {pair[scheme]} }}"
            for name, pair in colours.items()
        ]
        for scheme in (0, 1)
    ]
    light, dark = ("\n ".join(rules) for rules in both)
    return f"<style>{STYLE}\n {light}\n @media (prefers-color-scheme: dark) {{\n{DARK}\n {dark}\n }}\n</style>"
