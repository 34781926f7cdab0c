"""A process with moto's S3 server on loopback, and what goes wrong with real ones, see `faulty`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

os.environ["MOTO_S3_DEFAULT_MAX_KEYS"] = "20"  # a small store is several pages of a listing then

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

from tests.objects.faulty import serve
from tests.objects.strict import Strict, refuse

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

MESSAGES = {
    200: "InternalError",
    403: "AccessDenied",
    404: "NoSuchBucket",
    409: "ConditionalRequestConflict",
    500: "InternalError",
    503: "SlowDown",
}


class S3Server(Strict):
    """Moto, strict."""

    def name(self, environ: WSGIEnvironment) -> tuple[str, str, str]:
        """Return a request's method, path and query."""
        return environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", "")

    def refuse(self, status: int, _environ: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        """Answer with an error."""
        return refuse(status, MESSAGES[status], start)

    def forget_conditions(self, environ: WSGIEnvironment) -> None:
        """Take the conditions off a request."""
        environ.pop("HTTP_IF_MATCH", None)
        environ.pop("HTTP_IF_NONE_MATCH", None)


if __name__ == "__main__":
    serve(S3Server(DomainDispatcherApplication(create_backend_app)))
