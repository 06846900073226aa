from runguard_fixtures import *  # noqa: F403: the fixtures and hooks of every suite that starts the binary
