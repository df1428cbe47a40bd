"""Rows of a Hugging Face dataset, where the hub can be reached or its cache has it. Columns as in `table`."""

from collections.abc import Iterator

from untail.errors import DataError, UserError
from untail.tasks.base import TASKS
from untail.tasks.file import as_json
from untail.tasks.table import Record, TableTask


@TASKS.register("hf")
class HuggingFaceTask(TableTask):
    class Config(TableTask.Config):
        path: str  # on the hub: "openai/gsm8k"
        subset: str | None = None  # the hub's "configuration": "main"
        split: str = "train"

    config: Config

    @property
    def source(self) -> str:
        return self.config.path

    def records(self) -> Iterator[tuple[str, Record]]:
        try:
            from datasets import load_dataset
        except ImportError:
            raise UserError(
                f"{self.where} (hf) needs the datasets package; install it with: pip install datasets"
            ) from None
        path, subset, split = self.config.path, self.config.subset, self.config.split
        try:
            dataset = load_dataset(path, name=subset, split=split)
        except Exception as error:  # the hub, its client and the loader raise a score of types
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise DataError(
                f"the Hugging Face dataset {self.where}.path = {path!r} (subset {subset!r}, split {split!r}) cannot be "
                f"loaded: {reason}; check the names and the connection, or download it and use the task 'file'"
            ) from None
        for number, record in enumerate(dataset, start=1):
            yield f"{path} row {number}", as_json(record)
