"""The recipe of trees of a trained drafter."""

from foretoken.drafters.trained_recipe import TrainedTreeRecipe

RECIPE = TrainedTreeRecipe()
