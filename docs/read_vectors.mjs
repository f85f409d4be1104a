// Reads the vectors and computes every case in plain JavaScript:  node read_vectors.mjs DIR RESULTS
// Then:  refimpl vectors check DIR RESULTS
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const [directory, results] = process.argv.slice(2);
if (!results) throw new Error("usage: node read_vectors.mjs DIR RESULTS");

// Number() rounds a decimal to the nearest float64: these are the very inputs.
function read({ shape, decimal }) {
  const x = decimal.map(Number);
  if (shape.length < 2) return shape.length ? x : x[0];
  return Array.from({ length: shape[0] }, (_, i) => x.slice(i * shape[1], (i + 1) * shape[1]));
}

// JSON has no infinity: it is written as text.
const spelled = (x) => (Array.isArray(x) ? x.map(spelled) : Number.isFinite(x) ? x : x > 0 ? "inf" : x < 0 ? "-inf" : "nan");

const sum = (x) => x.reduce((a, b) => a + b, 0);
const dot = (x, y) => sum(x.map((a, i) => a * y[i]));
const transpose = (M) => (M.length ? M[0].map((_, c) => M.map((row) => row[c])) : []);
const multiply = (M, N) => { const columns = transpose(N); return M.map((row) => columns.map((c) => dot(row, c))); };
const zip = (f, ...Ms) => Ms[0].map((row, i) => row.map((_, c) => f(...Ms.map((M) => M[i][c]))));

const rhos = { // [rho, rho'] of z >= 0, with the limits at infinity
  exp: [(z) => -Math.exp(-z), (z) => Math.exp(-z)],
  log2: [(z) => Math.log(z + 2), (z) => 1 / (z + 2)],
  log1p: [Math.log1p, (z) => 1 / (1 + z)],
  sqrt: [(z) => Math.sqrt(z + 1), (z) => 0.5 / Math.sqrt(z + 1)],
  geman_mcclure: [(z) => (z === Infinity ? 1 : z / (1 + z)), (z) => (1 + z) ** -2],
  linear: [(z) => z, () => 1],
  epanechnikov: [(z) => (z < 1 ? z - (z * z) / 2 : 0.5), (z) => Math.max(1 - z, 0)],
  truncated: [(z) => Math.min(z, 1), (z) => (z < 1 ? 1 : 0)],
};

// the prox of a smooth activation: sigma(t) with (1 - alpha) sigma(t) + alpha t = v
const implicit = (sigma) => (v, alpha) => {
  if (alpha === 1) return sigma(v);
  let low = v - 800 * (1 + 1 / alpha), high = v + 800 * (1 + 1 / alpha);
  for (let i = 0; i < 120; i++) {
    const t = (low + high) / 2;
    if ((1 - alpha) * sigma(t) + alpha * t < v) low = t; else high = t;
  }
  return sigma((low + high) / 2);
};
const within = (inside, phi) => (inside ? phi() : Infinity);
const xlog = (x) => (x === 0 ? 0 : x * Math.log(x));
const dilogarithm = (x) => {
  if (x === 1) return Math.PI ** 2 / 6;
  if (x > 0.5) return Math.PI ** 2 / 6 - Math.log(x) * Math.log1p(-x) - dilogarithm(1 - x);
  let total = 0;
  for (let k = 60; k > 0; k--) total += x ** k / (k * k);
  return total;
};

const activations = { // [prox(v, alpha), phi(y)], with the parameters p of the case
  identity: () => [(v) => v, () => 0],
  relu: () => [(v) => Math.max(v, 0), (y) => within(y >= 0, () => 0)],
  shifted_relu: (p) => [(v, a) => Math.max(v - a * p.tau, 0), (y) => within(y >= 0, () => p.tau * y)],
  soft_threshold: (p) => [(v, a) => Math.sign(v) * Math.max(Math.abs(v) - a * p.tau, 0), (y) => p.tau * Math.abs(y)],
  hard_threshold: (p) => [(v, a) => (Math.abs(v) >= p.tau * Math.sqrt(a) ? v : 0), (y) => (y !== 0 ? p.tau ** 2 / 2 : 0)],
  leaky_relu: ({ slope: s }) => [
    (v, a) => (v >= 0 ? v : (v * s) / (s + a * (1 - s))),
    (y) => ((1 - s) / (2 * s)) * Math.min(y, 0) ** 2,
  ],
  hard_tanh: () => [(v) => Math.min(Math.max(v, -1), 1), (y) => within(Math.abs(y) <= 1, () => 0)],
  tanh: () => [implicit(Math.tanh), (y) => within(Math.abs(y) <= 1, () => (xlog(1 + y) + xlog(1 - y) - y * y) / 2)],
  sigmoid: () => [
    implicit((t) => 1 / (1 + Math.exp(-t))),
    (y) => within(y >= 0 && y <= 1, () => xlog(y) + xlog(1 - y) - (y * y) / 2),
  ],
  softplus: () => [
    implicit((t) => Math.max(t, 0) + Math.log1p(Math.exp(-Math.abs(t)))),
    (y) => within(y >= 0, () => dilogarithm(Math.exp(-y))),
  ],
  elu: ({ a }) => [
    implicit((t) => (t >= 0 ? t : a * Math.expm1(t))),
    (y) => within(y >= -a, () => (y >= 0 ? 0 : a * xlog(1 + y / a) - y - (y * y) / 2)),
  ],
};

// the largest eigenvalue of a small symmetric matrix, by Jacobi rotations
function largestEigenvalue(S) {
  const M = S.map((row) => [...row]), n = M.length;
  for (let sweep = 0; sweep < 30; sweep++)
    for (let p = 0; p < n; p++)
      for (let q = p + 1; q < n; q++) {
        if (M[p][q] === 0) continue;
        const angle = Math.atan2(2 * M[p][q], M[q][q] - M[p][p]) / 2, c = Math.cos(angle), s = Math.sin(angle);
        for (let k = 0; k < n; k++) [M[k][p], M[k][q]] = [c * M[k][p] - s * M[k][q], s * M[k][p] + c * M[k][q]];
        for (let k = 0; k < n; k++) [M[p][k], M[q][k]] = [c * M[p][k] - s * M[q][k], s * M[p][k] + c * M[q][k]];
      }
  return Math.max(...M.map((row, i) => row[i]));
}

// z_ij = |(y_i - y_j) W|^2 / 2, from differences and not from the Gram matrix
function distances({ Y, W }) {
  return Y.map((yi) => Y.map((yj) => {
    const [u] = multiply([yi.map((y, a) => y - yj[a])], W);
    return dot(u, u) / 2;
  }));
}
const kernel = (x, rho) => zip((m, z) => m * rho[1](z), x.m, distances(x));
const metric = (W) => multiply(W, transpose(W)); // S
const hessian = (Wf) => Wf.map((row, a) => row.map((w, b) => (a === b) + (w + Wf[b][a]) / 2)); // H
const pairs = (M) => sum(M.map((row, j) => sum(row.slice(0, j)))); // each unordered pair once
const squares = (Y, X) => sum(zip((y, x) => (y - x) ** 2, Y, X).map(sum));

function energy(x, rho) {
  return pairs(zip((m, z) => m * rho[0](z), x.m, distances(x)));
}
function gradient(x, rho) {
  const Gamma = kernel(x, rho);
  const LY = x.Y.map((yi, i) => yi.map((y, a) => sum(Gamma[i].map((g, j) => g * (y - x.Y[j][a])))));
  return multiply(LY, metric(x.W));
}
function weights(x, rho, name) {
  let Gamma = kernel(x, rho);
  if (name === "exp") { // softmax, less the largest exponent of the row: a whole row may underflow
    Gamma = distances(x).map((row, i) => {
      const least = Math.min(...row.filter((_, j) => x.m[i][j] > 0));
      return row.map((z, j) => (x.m[i][j] > 0 ? x.m[i][j] * Math.exp(least - z) : 0));
    });
  }
  return Gamma.map((row, i) => {
    const d = sum(row);
    return row.map((g, j) => (d === 0 ? Number(i === j) : g / d)); // a token without any weight stays
  });
}
function attentionStep(x, rho, name) {
  return zip((y, mean) => (1 - x.alpha) * y + x.alpha * mean, x.Y, multiply(weights(x, rho, name), x.Y));
}
function ffnGradient(x) {
  return zip((yh, b) => yh - b, multiply(x.Y, hessian(x.Wf)), x.B);
}
function ffnStep(x, [prox]) {
  return zip((y, g) => prox(y - x.alpha * g, x.alpha), x.Y, ffnGradient(x));
}
const degrees = (x, rho) => kernel(x, rho).map(sum);

const operations = {
  "attention.energy": energy,
  "attention.gradient": gradient,
  "attention.weights": weights,
  "attention.step": attentionStep,
  "attention.majorizer": (x, rho) => {
    const moved = { ...x, Y: x.Y_new };
    return energy(x, rho) + pairs(zip((g, z, old) => g * (z - old), kernel(x, rho), distances(moved), distances(x)));
  },
  "residual.energy": (x, rho) => energy(x, rho) + (x.lam / 2) * squares(x.Y, x.X),
  "residual.gradient": (x, rho) => zip((g, y, t) => g + x.lam * (y - t), gradient(x, rho), x.Y, x.X),
  "residual.step": (x, rho) => {
    const s = largestEigenvalue(metric(x.W)), d = degrees(x, rho), g = operations["residual.gradient"](x, rho);
    return x.Y.map((row, i) => row.map((y, a) => (s * d[i] + x.lam === 0 ? y : y - g[i][a] / (s * d[i] + x.lam))));
  },
  "feedforward.energy": (x, rho, name, [, phi]) =>
    sum(zip((yw, y) => (yw * y) / 2 + phi(y), multiply(x.Y, x.Wf), x.Y).map(sum)) + squares(x.Y, x.B) / 2,
  "feedforward.gradient": ffnGradient,
  "feedforward.step": (x, rho, name, activation) => ffnStep(x, activation),
  "prox.operator": (x, rho, name, [prox]) => x.v.map((v) => prox(v, x.alpha)),
  "prox.penalty": (x, rho, name, [, phi]) => x.y.map((y) => phi(y)),
  "layer.alternating": (x, rho, name, activation) => ffnStep({ ...x, Y: attentionStep(x, rho, name) }, activation),
  "layer.joint": (x, rho, name, [prox]) => {
    const s = largestEigenvalue(metric(x.W)), h = largestEigenvalue(hessian(x.Wf));
    const M = degrees(x, rho).map((d) => s * d + Math.max(h, 0) / 2);
    const attention = gradient(x, rho), ffn = ffnGradient(x);
    return x.Y.map((row, i) =>
      row.map((y, a) => (M[i] === 0 ? y : prox(y - (attention[i][a] + ffn[i][a]) / M[i], 1 / M[i]))));
  },
};

const answers = {};
for (const family of ["attention", "residual", "feedforward", "prox", "layer"]) {
  const document = JSON.parse(readFileSync(join(directory, `${family}.json`), "utf8"));
  if (document.version !== 1) throw new Error(`${family}.json: expected version 1, got ${document.version}`);
  for (const { id, operation, inputs, rho, activation } of document.cases) {
    const x = Object.fromEntries(Object.entries(inputs).map(([name, array]) => [name, read(array)]));
    const parameters = Object.entries(activation?.parameters ?? {}).map(([name, array]) => [name, read(array)]);
    const sigma = activation && activations[activation.name](Object.fromEntries(parameters));
    answers[id] = spelled(operations[operation](x, rho && rhos[rho.name], rho?.name, sigma));
  }
}
writeFileSync(results, JSON.stringify({ results: answers }));
