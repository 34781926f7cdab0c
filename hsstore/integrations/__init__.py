"""Other projects' trainers read a store as if it were their own files, and nothing is exported.

========================  ==================================================================
`specforge`               its `FeatureStore`, the `SampleRef`s to go with it, and its own command
`speculators`             a registered `HiddenStatesBackend`, and its own command
`modelopt`, `automodel`   map-style datasets with the keys of theirs
`prepare`                 what they need beside the samples
========================  ==================================================================

The first two need the project that they are named after; all need torch. A sample is what `hsstore.formats`
says that a file of it holds, so training on the store is training on an export.
"""
