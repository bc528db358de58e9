"""`python -m tightloop`: the command line."""

from tightloop.cli import main

if __name__ == "__main__":
    main()
