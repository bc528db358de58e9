from turnstile.machine import Turnstile

__all__ = ["Turnstile"]
