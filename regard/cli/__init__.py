"""The `regard` command: its verbs, each thin, and what files of any size need around them.

`command` holds the command itself and the verbs that make a model; `use` those that use one, `see` those that look into
one. Nobody imports this room but `__main__`. Begin with `command.main`.
"""

from regard.cli.command import app as app
from regard.cli.command import main as main
