"""explain(): what a plan says about itself."""

import numpy as np
import polyhead
import pytest

SIZES = dict(batch=2, heads=8, kv_heads=2, query_length=512, key_length=512, head_dim=64)


def test_a_dict_and_the_same_as_text():
    told = polyhead.explain(**SIZES, causal="bottom_right", softcap=30.0)
    assert told["shape"] == {**SIZES, "value_dim": 64}
    assert told["isa"] == polyhead.info()["isa"] and told["kernel"].startswith("attention_f32")
    assert told["softcap"] == 30 and told["alibi"] is False and told["relative_bias"] is None
    assert told["tiles"]["skipped"] > 0 and told["expected_ms"] > 0
    assert any("softcap" in why for why in told["not_faster"])
    text = polyhead.explain(**SIZES, causal="bottom_right", softcap=30.0, text=True)
    assert told["kernel"] in text and f"workspace    {told['workspace_bytes']} bytes" in text


def test_every_part_of_a_mask():
    told = polyhead.explain(**SIZES, masks=["packed", "boolean"], window=(63, 0), alibi=True, dtype="bfloat16", precision="fast")
    assert told["work"] == {"cut_at_run_time": True} and told["dtype"] == "bf16"
    table = np.zeros((32, 8), np.float32)
    told = polyhead.explain(**SIZES, relative_bias=polyhead.T5Bias(table), scale=1.0, block_size=(128, 128))
    assert told["relative_bias"] == {"kind": "t5", "buckets": 32, "max_distance": 128, "bidirectional": True}
    assert told["scale"] == 1.0


def test_the_parts_of_the_mask_are_named():
    absent = dict.fromkeys(["key_lengths", "query_lengths", "offsets", "packed", "prefix", "segments", "boolean", "bias"], False)
    assert polyhead.explain(**SIZES)["mask"] == {"causal": None, "window": None, "blocks": None, **absent}
    for part in absent:
        causal = "top_left" if part == "prefix" else None
        told = polyhead.explain(**SIZES, causal=causal, masks=[part])["mask"]
        assert told == {"causal": causal, "window": None, "blocks": None, **absent, part: True}
    streaming = dict(causal="bottom_right", window=(63, 0), sink_token_length=4, masks=["key_lengths"])
    told = polyhead.explain(**SIZES, **streaming)["mask"]
    assert (told["causal"], told["window"]) == ("bottom_right", {"left": 63, "right": 0, "kept": 4})
    assert "mask         causal bottom_right, window (63, 0), kept 4, key_lengths\n" in polyhead.explain(**SIZES, **streaming, text=True)
    assert polyhead.explain(**SIZES, block_size=(128, 64))["mask"]["blocks"] == {"queries": 128, "keys": 64}


def test_keys_and_out_of_other_types():
    told = polyhead.explain(**SIZES)
    assert (told["dtype"], told["key_dtype"], told["out_dtype"]) == ("f32", "f32", "f32")
    told = polyhead.explain(**SIZES, key_dtype="int8", out_dtype="bfloat16", masks=["key_lengths"])
    assert (told["key_dtype"], told["out_dtype"]) == ("i8", "bf16")
    assert told["dtype"] == "f32, keys and values i8, out bf16"


def test_kept_keys_are_tiles_of_their_own():
    window = polyhead.explain(**SIZES, causal="bottom_right", window=(9, 0))["tiles"]
    kept = polyhead.explain(**SIZES, causal="bottom_right", window=(9, 0), sink_token_length=4)["tiles"]
    assert kept["partial"] > window["partial"] and kept["skipped"] < window["skipped"]


def test_a_score_modification_and_its_classifier():
    mod = polyhead.ScoreMod(lambda score, batch, head, query, key: score, name="nothing")
    assert polyhead.explain(**SIZES, score_mod=mod)["score_mod"]["name"] == "nothing"
    half = polyhead.ScoreMod(
        lambda score, batch, head, query, key: score,
        lambda batch, heads, queries, keys: "skip" if keys[0] >= 256 else "partial",
        name="half",
    )
    told = polyhead.explain(**SIZES, score_mod=half)["score_mod"]
    assert told["classifies_tiles"] and told["tiles"]["skipped"] == told["tiles"]["partial"] > 0
    failing = polyhead.ScoreMod(lambda score, batch, head, query, key: score, lambda *place: 1 / 0, name="failing")
    with pytest.raises(ZeroDivisionError):
        polyhead.explain(**SIZES, score_mod=failing)
    with pytest.raises(TypeError, match="score_mod"):
        polyhead.explain(**SIZES, score_mod=3)


def test_names_what_is_wrong():
    for changes, message in [
        ({"causal": "yes"}, "causal: is 'yes', expected one of 'top_left', 'bottom_right', 'offset'"),
        ({"masks": ["lengths"]}, "masks: is 'lengths', expected one of 'key_lengths'"),
        ({"dtype": "float64"}, "dtype: is 'float64'"),
        ({"key_dtype": "int4"}, "key_dtype: is 'int4', expected one of 'float32', 'float16', 'bfloat16', 'int8'"),
        ({"out_dtype": "int8"}, "out_dtype: is 'int8', expected one of 'float32', 'float16', 'bfloat16'"),
        ({"kv_heads": 3}, "kv_heads is 3"),
        ({"masks": ["prefix"]}, "has_prefix is true"),
    ]:
        with pytest.raises(ValueError, match=message):
            polyhead.explain(**{**SIZES, **changes})
