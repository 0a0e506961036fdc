"""What `llamafactory-cli train` does, as a script: factory_plain.py CONFIGURATION."""

from llamafactory.train.tuner import run_exp

if __name__ == "__main__":
    run_exp()
