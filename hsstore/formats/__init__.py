"""Sample files of other projects, as pure mappings: what one file holds, to and from one neutral sample.

Nothing here opens a file or needs torch. A name such as `hidden_state` is the final state in one format and
the auxiliary ones in the next, so each module says what its own names mean, and none shares them.

Not here: NeMo Automodel's cache. It holds probabilities over a draft vocabulary, already shifted and
padded: it is made when it is needed, and nothing can be read back from it.
"""

from hsstore.formats.eagle import Eagle
from hsstore.formats.modelopt import ModelOpt
from hsstore.formats.sample import Content, ForeignSample, Format, Hints
from hsstore.formats.seed import Seed
from hsstore.formats.specforge import SpecForge
from hsstore.formats.speculators import Speculators
from hsstore.formats.torchspec import TorchSpec

FORMATS: dict[str, Format] = {
    one.name: one for one in (SpecForge(), Speculators(), ModelOpt(), TorchSpec(), Eagle(), Seed())
}
"""All formats, by the names that commands use."""

__all__ = ["FORMATS", "Content", "ForeignSample", "Format", "Hints"]
