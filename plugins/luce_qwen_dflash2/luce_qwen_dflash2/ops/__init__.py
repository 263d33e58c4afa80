"""The ops that only this plugin's models need, each with its reference and cases."""
