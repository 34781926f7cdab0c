"""What is looked at of a store under a URL. Runs in a child: every request may hang.

Nothing is put: whether writing works is told by the run, and an object store does not say how much room it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from extraction.diagnosis.child import Tell
    from hsstore.location import RemotePath

ATTEMPTS: Final = 3
"""Of each request: who asks what is wrong has no time for all that a run does."""
UNTRIED: Final = (
    "the doctor puts nothing into an object store, which does not say how much room it has"
)


def look_at_objects(
    store: RemotePath, look: Callable[[RemotePath, Tell], dict[str, Any]], tell: Tell
) -> dict[str, Any]:
    """Look at the signs of life of its runs, and at the store where it is there.

    Parameters
    ----------
    look : callable
        Reads a store that is there, wherever that is.

    Returns
    -------
    dict
        With `error` where the object store refuses, or could not be reached.
    """
    from hsstore.birth import is_born  # noqa: PLC0415  # brings fsspec
    from hsstore.errors import HsstoreError  # noqa: PLC0415
    from hsstore.objects.retry import try_at_most  # noqa: PLC0415

    try_at_most(ATTEMPTS)
    found: dict[str, Any] = {"real": str(store)}
    try:
        tell(f"asking for {store}/zarr.json")
        found["exists"] = found["is_store"] = is_born(store)
        tell(f"reading {store}.runs/claims")
        found["copies"] = read_sign_copies(store)
        return found | (look(store, tell) if found["exists"] else {})
    except HsstoreError as error:
        return found | {"error": str(error)}


def read_sign_copies(store: RemotePath) -> list[dict[str, Any]]:
    """Read the signs of life of runs that have not ended, in the form of `read_copies`.

    Raises
    ------
    UnreachableError, InputError
    """
    from hsstore.claim_objects import read_signs  # noqa: PLC0415  # brings fsspec

    return [
        {
            "status": sign.data.decode(errors="replace"),
            "stall": "",
            "written_seconds": sign.modified,
        }
        for sign in read_signs(store)
    ]
