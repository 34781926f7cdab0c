"""Take over a whole file without copying its bytes: by reflink, or by hard link.

A reflink is a file of its own that shares its blocks until one of both is written. A hard link is the
same file under two names. That is safe between stores because a published shard is never written again:
`hsstore.shard.writer.ShardWriter`, the only writer of shards, makes a new file under a name that nobody had
and renames it over the old name, which leaves what other names refer to as it was. So neither a later
run on the source nor one on the destination is seen in the other. What remains shared is the file's mode
and owner, and its blocks: a disk error hits both.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING

from hsstore.activity import operation
from hsstore.files import output_errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hsstore.consolidate.request import Linking

FICLONE = 0x40049409
"""From <linux/fs.h>."""
_CANNOT = frozenset(
    {
        errno.EXDEV,
        errno.EOPNOTSUPP,
        errno.ENOTTY,
        errno.EINVAL,
        errno.ENOSYS,
        errno.EPERM,
        errno.EACCES,
        errno.EMLINK,
        errno.EBADF,
        errno.ENOENT,
        errno.ESTALE,
    }
)
"""How a file system says that this cannot be done here: then bytes are copied."""


def take_over(source: Path, partial: Path, linking: Linking) -> bool:
    """Make `partial`, a new name, a durable twin of a published shard; say whether it could be done.

    Raises
    ------
    OutputError
        The file system failed.
    """
    if linking == "never":
        return False
    source = source.resolve()  # a link to a symbolic link would be one, too
    with output_errors(partial), operation("write", partial):
        return _try(_reflink, source, partial) or (
            linking == "auto" and _try(os.link, source, partial)
        )


def _try(link: Callable[[Path, Path], None], source: Path, partial: Path) -> bool:
    try:
        link(source, partial)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        return False
    return True


def _reflink(source: Path, partial: Path) -> None:
    with source.open("rb") as original, partial.open("xb") as twin:
        try:
            fcntl.ioctl(twin.fileno(), FICLONE, original.fileno())
            os.fsync(twin.fileno())
        except BaseException:
            partial.unlink()
            raise
