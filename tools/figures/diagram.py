"""A figure that is a scene, with a title and a description."""


class Diagram:
    def __init__(self, name, title, description, scene):
        self.name, self.title, self.description, self.scene = name, title, description, scene

    def svg(self):
        return self.scene.svg(self.name, self.title, self.description)

    def text(self):
        return self.scene.grid.text()
