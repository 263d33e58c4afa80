"""`luce quantize`: a model file written again with other quant types."""
