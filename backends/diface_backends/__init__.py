"""The engines that diface ships, one module each, found by entry point like a third party's."""
