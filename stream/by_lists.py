"""A map-style dataset that is asked for whole lists of row numbers, as one that is asked for rows."""

from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset


class ByLists(Dataset[Any]):
    """Shows torch a dataset whose `[numbers]` is a whole batch, which torch asks so when a sampler gives lists.

    So portions can be asked for, by fewer numbers each. All else is the dataset's own.
    """

    def __init__(self, dataset: Any) -> None:  # noqa: ANN401 - foreign
        self.dataset = dataset

    def __getitem__(self, numbers: Any) -> Any:  # noqa: ANN401 - what the dataset takes and gives
        return self.dataset[numbers]

    def __getitems__(self, numbers: Sequence[Any]) -> Any:  # noqa: ANN401 - a batch
        return self.dataset[list(numbers)]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as above
        if name == "dataset":  # asked before it is there, by copies
            raise AttributeError(name)
        return getattr(self.dataset, name)
