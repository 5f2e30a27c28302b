"""The recipe of trees of a trained drafter."""

from foretoken.drafters.mixture_recipe import MixtureTreeRecipe

RECIPE = MixtureTreeRecipe()
