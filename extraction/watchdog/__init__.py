"""What keeps a run from being silent: stall reports, and outputs that cannot block.

Nothing is imported here: some of these modules run in small processes that have to start fast.
"""
