"""python -m hasten, for where the command is not on the path."""

from hasten.cli import main

if __name__ == "__main__":
    main()
