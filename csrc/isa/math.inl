// exp and log of whole arrays, over the same vector type V as chunk.inl; both err by less than one unit in the last place
// and a half. V must also provide mul, sub, min, scale (adds an integer's low bits to the exponent) and split.

namespace {

constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer and leaves it in the low bits

// e^x: x = n ln 2 + r, e^r = 1 + r + r^2 p(r) with p minimax on |r| <= ln(2)/2 (3e-9 relative).
inline V exp_of(V x) {
  x = V::max_keep_nan(V::set1(-105.0f), V::min(V::set1(89.0f), x));
  const V magic = V::set1(kMagic);
  const V n = V::sub(V::fma(x, V::set1(kLog2E), magic), magic);
  V r = V::fma(n, V::set1(-0x1.62e4p-1f), x);       // ln 2 in two parts: n times the first one is exact
  r = V::fma(n, V::set1(-0x1.7f7d1cp-20f), r);
  V p = V::fma(V::set1(0x1.6a243ap-10f), r, V::set1(0x1.1239ep-7f));
  p = V::fma(p, r, V::set1(0x1.5558f2p-5f));
  p = V::fma(p, r, V::set1(0x1.555492p-3f));
  p = V::fma(p, r, V::set1(0x1.fffffcp-2f));
  p = V::add(V::fma(V::mul(r, r), p, r), V::set1(1.0f));
  // 2^n in two factors, so that results below the smallest normal number round as they should.
  const V half = V::fma(n, V::set1(0.5f), magic);
  const V rest = V::add(V::sub(n, V::sub(half, magic)), magic);
  const V one = V::set1(1.0f);
  return V::mul(V::mul(p, V::scale(one, half)), V::scale(one, rest));
}

// log x, x positive and normal: x = m 2^e with m in [sqrt(1/2), sqrt(2)); f = m - 1; log m = f - f^2/2 + f^3 q(f).
inline V log_of(V x) {
  V m, e;
  V::split(x, m, e);
  const V f = V::sub(m, V::set1(1.0f));
  const V f2 = V::mul(f, f);
  V q = V::fma(V::set1(-0x1.38b58ap-4f), f, V::set1(0x1.055b72p-3f));
  q = V::fma(q, f, V::set1(-0x1.0d8542p-3f));
  q = V::fma(q, f, V::set1(0x1.22da1cp-3f));
  q = V::fma(q, f, V::set1(-0x1.547244p-3f));
  q = V::fma(q, f, V::set1(0x1.99a008p-3f));
  q = V::fma(q, f, V::set1(-0x1.000226p-2f));
  q = V::fma(q, f, V::set1(0x1.555554p-2f));
  V tail = V::mul(V::mul(f2, f), q);
  tail = V::fma(e, V::set1(0x1.7f7d1cp-20f), tail);
  tail = V::fma(f2, V::set1(-0.5f), tail);
  return V::fma(e, V::set1(0x1.62e4p-1f), V::add(f, tail));
}

void exp_all(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) V::store(x + i, exp_of(V::load16(x + i)));
}

void log_all(float* x, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) V::store(x + i, log_of(V::load16(x + i)));
}

}  // namespace
