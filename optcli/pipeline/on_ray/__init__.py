"""Passes of a build on the nodes of a Ray cluster: docs/how-to/build-on-ray.md.

`maker` hands orders to `cluster`, which finds a node and waits; on the node `node` checks that the
key would be the same there and carries the step out. `parts` does the same with parts of the evaluation
set. `parcels` moves files by their content through the remote store. Where every node sees
the local store no file is moved.
"""
