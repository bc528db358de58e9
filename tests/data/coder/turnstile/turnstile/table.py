TABLE = {
    ("locked", "coin"): "unlocked",
    ("locked", "push"): "locked",
    ("unlocked", "push"): "locked",
    ("unlocked", "coin"): "locked",
    ("broken", "repair"): "unlocked",
}
