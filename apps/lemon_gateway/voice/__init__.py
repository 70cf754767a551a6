"""Phone calls over Twilio, as a way into the gateway: `surface.py` puts everything together."""
