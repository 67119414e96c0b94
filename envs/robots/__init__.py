"""The robots that come with RoboLearn: one folder each, holding an MJCF file and a robot.yaml."""
