"""Devices that optcli reaches by ssh; they have Python and a runtime, and need no optcli."""
