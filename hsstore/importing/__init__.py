"""Files of other projects into a store: which sample each one is, and whether its states can be taken."""

from hsstore.importing.files import Source, open_source
from hsstore.importing.plan import dataset_of
from hsstore.importing.probe import Probe, probe
from hsstore.importing.run import import_files

__all__ = ["Probe", "Source", "dataset_of", "import_files", "open_source", "probe"]
