//! What holds only inside the workspace. This file is not part of the package, whose tests have to do without their neighbours.

#[test]
fn the_circle_of_the_tests_is_one_of_the_golden_vectors() {
    let (circle, vectors) = (include_str!("../testdata/circle.txt"), include_str!("../../core/testdata/circles.txt"));
    assert!(vectors.contains(circle), "testdata/circle.txt is not in crates/core/testdata/circles.txt any more: copy one from there");
}
