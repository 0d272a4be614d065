"""How nodes of random graphs are drawn, by families of operators."""

# Seeds of findings name a recipe by its place: the order of these is part of what a seed means.
from tests.fuzz.recipes import arithmetic, movement, layers, others  # noqa: F401, I001
from tests.fuzz.recipes.recipe import RECIPES

__all__ = ["RECIPES"]
