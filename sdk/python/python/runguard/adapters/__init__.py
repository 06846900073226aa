"""Hooks into agent frameworks, one file each. Importing `runguard` imports none of them."""
