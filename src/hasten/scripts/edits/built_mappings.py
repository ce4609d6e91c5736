"""The keys of a dictionary that a call gets as `**options`, where the file itself builds it."""

from __future__ import annotations

import ast


def has_no_key(tree: ast.Module, mapping: ast.expr, key: str) -> bool:
    """False where it could have the key: a part of the file does more with the dictionary than to make it of written
    keys, to set such a key, and to give it to calls."""
    if not isinstance(mapping, ast.Name):
        return False
    known, keys, is_made = set[int](), set[str](), False
    for node in ast.walk(tree):
        match node:
            case ast.Assign([ast.Name(mapping.id) as target], ast.Dict(written)) if all(map(_is_text, written)):
                keys |= {ast.literal_eval(each) for each in written if each is not None}
                is_made = True
            case ast.Assign([ast.Name(mapping.id) as target], ast.Call(ast.Name("dict"), [], named)) if all(
                each.arg for each in named
            ):
                keys |= {each.arg for each in named if each.arg is not None}
                is_made = True
            case ast.Assign([ast.Subscript(ast.Name(mapping.id) as target, ast.Constant(str(one)))]):
                keys.add(one)
            case ast.keyword(None, ast.Name(mapping.id) as target):
                pass
            case ast.arg(mapping.id):
                return False
            case _:
                continue
        known.add(id(target))
    used = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == mapping.id)
    return is_made and key not in keys and all(id(each) in known for each in used)


def _is_text(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and isinstance(key.value, str)
