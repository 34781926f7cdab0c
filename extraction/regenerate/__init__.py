"""`hsstore regenerate`: prompts in, the target's own answers out, through the server of `extract`.

A draft model learns most from what its target says itself. `prompts` reads what is to be asked,
`talking` has one conversation turn by turn, `output` keeps what was answered, `run` does it all.
"""

from extraction.regenerate.options import RegenerateOptions
from extraction.regenerate.run import Summary, regenerate

__all__ = ["RegenerateOptions", "Summary", "regenerate"]
