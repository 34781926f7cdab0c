"""Find out why a run stands still: evidence, a judge that is a pure function, and collectors.

The watchdog (in the supervisor) uses `collect_local`, which touches /proc and shared memory only;
`hsstore doctor` uses `collect_all`, which asks the server and the disk too, with deadlines.
"""
