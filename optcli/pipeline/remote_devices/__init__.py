"""Machines that measure for the one that runs optcli; `on_ray` and `on_ssh` reach them."""
