"""``python -m batonmq`` is the ``batonmq`` command."""

from batonmq.cli.main import main

if __name__ == "__main__":
    main()
