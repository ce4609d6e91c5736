"""The entry point of the `hasten` command, and python -m hasten for where that is not on the path.

Signals are listened to before anything is imported that takes longer than a few milliseconds.
"""

from hasten.stop_signals import end_at_once


def main() -> None:
    end_at_once()
    from hasten import cli

    cli.main()


if __name__ == "__main__":
    main()
