"""`python -m moesaic` is the command line."""

from moesaic.cli.app import main

if __name__ == "__main__":
    main()
