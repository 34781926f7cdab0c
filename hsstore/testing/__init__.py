"""Small stores with known contents, and what must always be true of a store.

For the tests of hsstore itself, and of whoever writes or reads stores.
"""
