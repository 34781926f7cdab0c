"""A remote spool: finished dumps over HTTP, for a client that is not on the server's machine.

`hsstore relay SPOOL` runs beside the server and holds its spool in the client's name; the client's
`Mirror` keeps a local spool that looks like the server's own, so that nothing else has to know.
Requests for captures go straight to the server's URL, not through here.

The protocol, version 1. Every path but `/health` wants `Authorization: Bearer TOKEN` where the relay
has a token. Both sides send `HSSTORE-Relay: 1`; a request of another version is refused by name.
A client names its session in `HSSTORE-Session`: a random word, another one each time that it holds
the spool. Bodies are JSON; ids are those of `RequestId`.

======================================  ==========================================================
`GET /health`                           200, empty, for whoever asks
`POST /v1/session`                      {run, store, host}: hold the spool for this run, as
                                        `client.lock` and `client.json` say it; again in the same
                                        session: the same. -> {lease_seconds}
`DELETE /v1/session`                    leave; what lies there stays. Again: nothing
`GET /v1/spool?seen&wait`               what lies there (`Listing`); held back for up to `wait`
                                        seconds while it is what `seen` names
`GET /v1/server`                        server.json as it is
`GET /v1/dumps/RID`                     the file; `Range: bytes=N-` goes on after a cut
`GET /v1/dumps/RID/digest`              {size_bytes, xxh3_128}
`POST /v1/release`                      {give_back: [RID], discard: [RID], discard_runs: [RUN],
                                        keep_free: BYTES}: as `SpoolClient` does it; what is gone
                                        already is no error
======================================  ==========================================================

Dumps, digests and releases are for the session that holds the spool. Any request of it renews its
lease. A lease that ran out frees the spool and touches no dump; the same session may come back.
Another session of the same run takes its place at once. Another run of the same store may take the
place of one whose connection broke and that was not heard of for `ORPHANED_SECONDS`.

Errors are {error: {code, kind, message}}: 400 `request`, 400 `version`, 401 `token`, 404 `missing`,
409 `held` (by another, with its `idle_seconds`), 409 `lost` (this session holds nothing: open it
again), 500 `request` (a bug), 503 `no-spool`, 503 `busy`. What is sent again after a lost answer
changes nothing.
"""
