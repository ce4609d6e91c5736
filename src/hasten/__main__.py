"""python -m hasten, which torchrun needs."""

from hasten.cli import main

if __name__ == "__main__":
    main()
