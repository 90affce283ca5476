import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
x = np.random.default_rng(3).normal(size=(150_000, 60))
x[:50_000] += 3
print(PCA(5, random_state=1, svd_solver="full").fit(x).explained_variance_ratio_.round(6).tolist())
model = KMeans(4, n_init=1, max_iter=15, random_state=1).fit(x)
print(round(float(model.inertia_), 1), np.bincount(model.labels_).tolist())
y = x[:, 0] + x[:, 3] > 1
forest = RandomForestClassifier(8, random_state=1, n_jobs=2, max_depth=9).fit(x[:60_000], y[:60_000])
print(round(forest.score(x[60_000:], y[60_000:]), 6))
