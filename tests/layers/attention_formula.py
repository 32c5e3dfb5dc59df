"""Attention by its formula, against which every kind of attention is checked."""

import torch


def places(grid, *, cell=1):
    """Row and column of the centre of each cell of ``cell`` x ``cell`` tokens."""
    rows, columns = (torch.arange(-(-n // cell)) * cell + (cell - 1) / 2 for n in grid)
    return torch.cartesian_prod(rows.double(), columns.double()).view(-1, 2)


def attention_by_formula(
    attn, x, grid, num_prefix, *, window=None, source=None, bias=None, turn=None
):
    """The output of ``attn`` for tokens (B, P + H * W, C).

    Args:
        window: Side of the windows that patches see, beside the prefix; the prefix sees everything.
        source: Tokens of keys and values, if they are not those of the queries.
        bias: Function of the patches' queries to a bias on the logits of patches.
        turn: Function of queries and keys to rotated ones.
    """
    if hasattr(attn, 'qkv'):
        weight, offset = attn.qkv.weight, attn.qkv.bias
    else:
        weight = torch.cat((attn.q.weight, attn.kv.weight))
        offset = torch.cat((attn.q.bias, attn.kv.bias))
    dim, source = x.shape[-1], x if source is None else source
    query = x @ weight[:dim].T + offset[:dim]
    key, value = (source @ weight[dim:].T + offset[dim:]).chunk(2, dim=-1)
    heads = (t.unflatten(-1, (attn.num_heads, -1)).transpose(1, 2) for t in (query, key, value))
    query, key, value = heads
    turned_query, turned_key = (query, key) if turn is None else turn(query, key)
    logits = turned_query @ turned_key.mT / query.shape[-1] ** 0.5
    patches = logits[:, :, num_prefix:, num_prefix:]
    if bias is not None:
        patches += bias(query[:, :, num_prefix:])
    if window is not None:
        window_of = torch.div(places(grid), window, rounding_mode='floor')
        patches.masked_fill_((window_of[:, None] != window_of[None]).any(-1), -torch.inf)
    return attn.proj((logits.softmax(-1) @ value).transpose(1, 2).flatten(2))
