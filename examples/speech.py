"""Speech to text with two models, as Whisper's: the encoder runs once, and the decoder a token at a time.

The encoder's keys and values are given to the decoder as they lie on the device, with the first token; later runs take
an input that is left out from the run before. The decoder's own keys and values are its state, and grow in place. The
weights are drawn at random, so the text means nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from digits import Array
from networks import BANDS, CACHES, HEAD, HEADS, MOST_TOKENS, SOUND_FRAMES, trace_speech_decoder, trace_speech_encoder

import gpuexec as gx

START, END = 0, 1


def transcribe(encoder: gx.Worker, decoder: gx.Worker, sound: Array) -> list[int]:
    """Return the likeliest tokens, each given the ones before, until the end or ``MOST_TOKENS``."""
    run = encoder.schedule(sound)
    given: dict[str, Any] = {name.replace("present", "past_key_values"): each for name, each in run.outputs.items()}
    decoder.state.reset()
    tokens = [START]
    while tokens[-1] != END and len(tokens) < MOST_TOKENS:
        decoder.schedule({"token": np.array([[tokens[-1]]]), **given})
        tokens.append(int(decoder.read_output("logits")[0, -1].argmax()))
        given = {}
    return tokens


def transcribe_by_hand(encoder: gx.Worker, decoder: gx.Worker, sound: Array) -> list[int]:
    """Do the same with a decoder without state: what it goes on from passes through the host at every step."""
    heard = {name.replace("present", "past_key_values"): each for name, each in encoder.run(sound).items()}
    past = {f"past_key_values.{name.format('decoder')}": np.zeros((1, HEADS, 0, HEAD), np.float32) for name in CACHES}
    tokens = [START]
    while tokens[-1] != END and len(tokens) < MOST_TOKENS:
        outputs = dict(decoder.run({"token": np.array([[tokens[-1]]]), **heard, **past}).items())
        tokens.append(int(outputs.pop("logits")[0, -1].argmax()))
        past = {name.replace("present", "past_key_values"): each for name, each in outputs.items()}
    return tokens


def main() -> None:
    """Transcribe two sounds, one after the other, both ways."""
    sounds = np.random.default_rng(23).normal(size=(2, 1, BANDS, SOUND_FRAMES)).astype(np.float32)
    step = trace_speech_decoder()
    with gx.Worker(trace_speech_encoder()) as encoder:
        with gx.Worker(step.bind_state("auto", capacity=MOST_TOKENS)) as decoder:
            texts = [transcribe(encoder, decoder, sound) for sound in sounds]
            print(f"  {texts[0]}\n  {decoder.report().runs} tokens, {decoder.report().plans} plan")
        with gx.Worker(step) as decoder:
            print(f"as by hand: {texts == [transcribe_by_hand(encoder, decoder, sound) for sound in sounds]}")
    print(f"each sound has its text: {texts[0] != texts[1]}")


if __name__ == "__main__":
    main()
