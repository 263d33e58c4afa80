"""The ops that only these models need: spec, torch reference and parity cases, one file each."""
