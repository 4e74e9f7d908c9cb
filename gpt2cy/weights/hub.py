# SPDX-License-Identifier: Apache-2.0
"""Models of the Hugging Face hub, through its own client: with its cache, environment and errors.

Only what is needed is fetched: the configuration, the weights in one form, the tokenizer.
"""

from pathlib import Path

from gpt2cy.weights.files import is_plain_name, read_json

TOKENIZER = (
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
SINGLE = ("model.safetensors", "pytorch_model.bin")


def fetch(source: str, *, revision=None, token=None, local_files_only=False, cache_dir=None) -> Path:
    """Return the folder in the hub's cache with the files of a model, fetched where they are not there yet.

    Parameters
    ----------
    source : str
        Id of the model, such as "openai-community/gpt2".
    revision : str, optional
        Branch, tag or commit.
    token : str or bool, optional
        As huggingface_hub takes it.
    local_files_only : bool
        Whether to use what is in the cache and ask nobody.
    cache_dir : str or Path, optional
        Where the cache is; None means what huggingface_hub's environment variables say.

    Raises
    ------
    ImportError
        If huggingface_hub is not installed.
    OSError
        What huggingface_hub raises: its errors of network, access and missing files are kinds of it.
    """
    client = _client(source)
    errors = client.errors

    def get(name):
        return client.hf_hub_download(
            source,
            name,
            revision=revision,
            token=token,
            local_files_only=local_files_only,
            cache_dir=cache_dir,
        )

    def get_if_there(name):
        try:
            return get(name)
        except errors.EntryNotFoundError:  # or, without the network, not in the cache
            return None

    try:
        folder = Path(get("config.json")).parent
    except OSError as error:
        error.add_note(f"there is no file or folder {source!r}: it was taken for an id of the hub")
        raise
    for name in SINGLE:
        if get_if_there(name):
            break
        if index := get_if_there(f"{name}.index.json"):
            fields = read_json(index)
            weight_map = fields.get("weight_map") if isinstance(fields, dict) else None
            shards = weight_map.values() if isinstance(weight_map, dict) else ()
            for shard in sorted({shard for shard in shards if is_plain_name(shard)}):
                get(shard)
            break
    for name in TOKENIZER:
        get_if_there(name)
    return folder


def _client(source):
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError:
        raise ImportError(
            f"source: no file or folder {source!r}; to fetch a model of that id from the hub: "
            "pip install 'gpt2cy[hub]'"
        ) from None
    return huggingface_hub
