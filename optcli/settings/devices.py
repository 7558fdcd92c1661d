"""What a recipe may say of the machines that latency is measured on."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from optcli.settings import Finite, Settings

# The machine that runs optcli: a recipe may name it without listing it.
HERE = "here"

Amount = Annotated[Finite, Field(gt=0)]


class RayPlace(Settings):
    """The nodes of a Ray cluster that are the device: those that have all of these."""

    resources: dict[str, Amount] = Field(
        default_factory=dict,
        description="what a node was given by `ray start --resources`, and how much of it at least",
    )
    accelerator: str | None = Field(
        None, min_length=1, description="the type of its GPU as Ray names it, such as A10G"
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.resources and self.accelerator is None:
            raise ValueError("found neither resources nor accelerator, wanted one that a node has")
        return self

    @property
    def wanted(self) -> dict[str, float]:
        """The resources that a node must have, by Ray's names."""
        # Ray gives each node with a GPU one unit of this.
        kind = {f"accelerator_type:{self.accelerator}": 0.001} if self.accelerator else {}
        return {**self.resources, **kind}


class DeviceSettings(Settings):
    """A machine to measure on: `{}` is the one that runs optcli."""

    ray: RayPlace | None = Field(
        None, description="the nodes of the cluster that `--ray` names; default: no Ray"
    )
    ssh: bool = Field(
        False,
        description="true: a host that you reach by ssh. Your own configuration says where it is",
    )

    @field_validator("ssh", mode="before")
    @classmethod
    def _says_no_address(cls, value: object) -> object:
        if isinstance(value, str | dict):
            raise ValueError(
                f"found {value!r}, wanted true: where the device is stands in your own configuration,"
                " ~/.config/optcli/config.toml"
            )
        return value

    @model_validator(mode="after")
    def _is_one_machine(self) -> Self:
        if self.ray is not None and self.ssh:
            raise ValueError("found ray and ssh, wanted one of them")
        return self

    @property
    def is_here(self) -> bool:
        """Whether it is the machine that runs optcli."""
        return self.ray is None and not self.ssh
