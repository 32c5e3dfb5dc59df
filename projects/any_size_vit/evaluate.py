"""Features of images at several sizes: nearest neighbours, a linear probe, and cosine to the
teacher.
"""

from typing import Any

import numpy as np

NEIGHBOURS = 5


def normalised(features: np.ndarray) -> np.ndarray:
    """Rows of length one, fp32."""
    features = features.astype(np.float32)
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def by_neighbours(gallery: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Class of each query: that of most of its nearest neighbours in the gallery, weighted by
    cosine.
    """
    cosines = normalised(queries) @ normalised(gallery).T
    nearest = np.argsort(-cosines, axis=1, kind='stable')[:, :NEIGHBOURS]
    votes = np.zeros((len(queries), labels.max() + 1))
    for column in nearest.T:
        rows = np.arange(len(queries))
        votes[rows, labels[column]] += cosines[rows, column]
    return votes.argmax(axis=1)


def by_probe(gallery: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Class of each query by logistic regression on the gallery's standardised features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    return probe.fit(normalised(gallery), labels).predict(normalised(queries))


def score(
    gallery: np.ndarray,
    gallery_labels: np.ndarray,
    queries: np.ndarray,
    labels: np.ndarray,
    teacher: np.ndarray,
) -> dict[str, Any]:
    """Results of one size.

    Args:
        gallery, gallery_labels: Features (G, C) at the teacher's size, and classes.
        queries, labels: Features (Q, C) at this size, and classes.
        teacher: The teacher's features (Q, C) of the queries at its own size.

    Returns:
        dict: ``neighbours`` and ``probe``, one digit a query (1: right), and ``cosines``, per
            mille.
    """
    row: dict[str, Any] = dict(queries=len(queries))
    for name, rule in (('neighbours', by_neighbours), ('probe', by_probe)):
        right = rule(gallery, gallery_labels, queries) == labels
        row[name] = ''.join('1' if hit else '0' for hit in right)
    cosines = (normalised(queries) * normalised(teacher)).sum(axis=1)
    return row | dict(cosines=' '.join(str(round(1000 * float(value))) for value in cosines))
