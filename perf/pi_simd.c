/* The trapezoid rule of pi/pi.py as one loop, for the compiler to vectorise: a peer of perf/pi.py, which compiles it.
 *
 *   cc -O3 -march=native -fopenmp-simd -shared -fPIC pi_simd.c -o pi_simd.so
 *
 * Without the reduction clause the sum would have to be added up in the order of the loop, one number after the other:
 * floating-point addition is not associative, and -O3 alone does not reorder it.
 */
double trapezoid(long intervals)
{
    const double h = 1.0 / (double)intervals;
    double sum = 0.75; /* the end points at half weight: 1/2 + 1/4 */
#pragma omp simd reduction(+ : sum)
    for (long i = 1; i < intervals; i++) {
        const double x = (double)i * h;
        sum += 1.0 / (1.0 + x * x);
    }
    return 4.0 * h * sum;
}
