"""The command line: one file a command, each with ``add_parser`` and ``run``.

Heavy packages are imported inside the command that needs them, so that ``rollart plan`` and ``--help``
start at once and need neither torch nor ray.
"""
